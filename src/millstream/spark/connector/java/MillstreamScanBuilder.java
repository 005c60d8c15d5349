package millstream.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One query: which columns, which conditions, which aggregates. Each query has a builder of its own. */
final class MillstreamScanBuilder
    implements SupportsPushDownRequiredColumns, SupportsPushDownFilters, SupportsPushDownAggregates {
  private final MillstreamTable table;
  private final CaseInsensitiveStringMap options;
  private StructType columns;
  private final Conditions conditions = new Conditions();
  private Planner.LocalRows aggregated;
  private boolean isQuery;

  MillstreamScanBuilder(MillstreamTable table, CaseInsensitiveStringMap options) {
    this.table = table;
    this.options = options;
    this.columns = table.schema();
  }

  @Override
  public Filter[] pushFilters(Filter[] filters) {
    isQuery = true;
    Filter[] left = conditions.take(filters, table.schema(), options);
    if (conditions.exact().length > 0) {
      try {
        Planner.of(table.source()).ready(request());
      } catch (Planner.Refused refused) {
        conditions.forget(); // Spark's own way applies none of them
        return filters;
      }
    }
    return left;
  }

  @Override
  public Filter[] pushedFilters() {
    return conditions.exact();
  }

  @Override
  public void pruneColumns(StructType required) {
    isQuery = true;
    List<StructField> kept = new ArrayList<>();
    for (StructField field : table.schema().fields()) {
      if (Arrays.asList(required.fieldNames()).contains(field.name())) {
        kept.add(field); // whole, also if the query names only a part of a struct
      }
    }
    if (kept.isEmpty()) {
      kept.add(cheapest()); // Arrow batches without a column do not tell their length
    }
    columns = new StructType(kept.toArray(new StructField[0]));
  }

  private StructField cheapest() {
    StructField best = table.schema().fields()[0];
    for (StructField field : table.schema().fields()) {
      if (field.dataType().defaultSize() < best.dataType().defaultSize()) {
        best = field;
      }
    }
    return best;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return pushAggregation(aggregation);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    if (aggregated != null) {
      return true;
    }
    ObjectNode request = request();
    ArrayNode groups = request.putArray("groups");
    ArrayNode measures = request.putArray("measures");
    List<StructField> fields = new ArrayList<>();
    for (Expression group : aggregation.groupByExpressions()) {
      String name = nameOf(group);
      if (name == null) {
        return false;
      }
      groups.add(name);
      StructField field = table.schema().apply(name);
      fields.add(new StructField(name, field.dataType(), true, field.metadata()));
    }
    for (AggregateFunc function : aggregation.aggregateExpressions()) {
      String measure = measureOf(function);
      if (measure == null) {
        return false;
      }
      measures.add(measure);
      fields.add(DataTypes.createStructField(measure + "_" + fields.size(), DataTypes.LongType, true));
    }
    try {
      StructType rows = new StructType(fields.toArray(new StructField[0]));
      aggregated = Planner.of(table.source()).aggregate(request, rows, table);
      return true;
    } catch (Planner.Refused refused) {
      return false; // Spark counts the records itself
    }
  }

  private String nameOf(Expression expression) {
    if (!(expression instanceof NamedReference)) {
      return null;
    }
    String[] parts = ((NamedReference) expression).fieldNames();
    return parts.length == 1 && Arrays.asList(table.schema().fieldNames()).contains(parts[0])
        ? parts[0]
        : null;
  }

  private String measureOf(AggregateFunc function) {
    if (function instanceof CountStar) {
      return "count";
    }
    if (function instanceof Count && !((Count) function).isDistinct()) {
      String name = nameOf(((Count) function).column());
      return name != null && Conditions.isNeverNull(name) ? "count" : null;
    }
    if (function instanceof Min) {
      return "offset".equals(nameOf(((Min) function).column())) ? "min" : null;
    }
    if (function instanceof Max) {
      return "offset".equals(nameOf(((Max) function).column())) ? "max" : null;
    }
    return null;
  }

  private ObjectNode request() {
    ObjectNode request = Planner.request(options, table.schema());
    request.set("conditions", conditions.json());
    return request;
  }

  @Override
  public Scan build() {
    if (aggregated != null) {
      return aggregated;
    }
    if (!isQuery) {
      return table.pythonScanBuilder(options).build(); // a stream
    }
    ObjectNode request = request();
    ArrayNode names = request.putArray("columns");
    for (String name : columns.fieldNames()) {
      names.add(name);
    }
    return new MillstreamScan(table, columns, options, request, conditions);
  }
}
