package millstream.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The conditions of one query that choose records by where they lie: topic, offset, time of append.
 *
 * <p>Conditions on topic and offset are met exactly. One on the time of append only narrows what is
 * read, and Spark applies it too. All others are Spark's.
 */
final class Conditions {
  private static final Set<String> NEVER_NULL =
      Set.of("topic", "partition", "offset", "timestamp", "appendTimestamp");

  private final ArrayNode taken = Planner.JSON.createArrayNode();
  private final List<Filter> exact = new ArrayList<>();

  static boolean isNeverNull(String column) {
    return NEVER_NULL.contains(column);
  }

  /** Note the conditions that choose by place; return those that Spark has to apply. */
  Filter[] take(Filter[] filters, StructType schema, CaseInsensitiveStringMap options) {
    List<Filter> left = new ArrayList<>();
    boolean hasOffset = Arrays.asList(schema.fieldNames()).contains("offset");
    boolean isOfLogs = hasOffset && !options.containsKey("queue");
    for (Filter filter : filters) {
      if (isOfLogs && isExact(filter)) {
        exact.add(filter);
      } else {
        left.add(filter);
      }
    }
    return left.toArray(new Filter[0]);
  }

  /** Leave all conditions to Spark. */
  void forget() {
    exact.clear();
    taken.removeAll();
  }

  Filter[] exact() {
    return exact.toArray(new Filter[0]);
  }

  ArrayNode json() {
    return taken;
  }

  private boolean isExact(Filter filter) {
    if (filter instanceof IsNotNull) {
      return isNeverNull(((IsNotNull) filter).attribute());
    }
    if (filter instanceof EqualTo) {
      EqualTo equal = (EqualTo) filter;
      return add(equal.attribute(), "=", equal.value());
    }
    if (filter instanceof In) {
      return addTexts((In) filter);
    }
    if (filter instanceof GreaterThan) {
      GreaterThan above = (GreaterThan) filter;
      return add(above.attribute(), ">", above.value());
    }
    if (filter instanceof GreaterThanOrEqual) {
      GreaterThanOrEqual least = (GreaterThanOrEqual) filter;
      return add(least.attribute(), ">=", least.value());
    }
    if (filter instanceof LessThan) {
      LessThan below = (LessThan) filter;
      return add(below.attribute(), "<", below.value());
    }
    if (filter instanceof LessThanOrEqual) {
      LessThanOrEqual most = (LessThanOrEqual) filter;
      return add(most.attribute(), "<=", most.value());
    }
    return false;
  }

  private boolean addTexts(In in) {
    if (!in.attribute().equals("topic")) {
      return false;
    }
    ObjectNode condition = Planner.JSON.createObjectNode();
    ArrayNode texts = condition.put("column", "topic").put("is", "in").putArray("texts");
    for (Object value : in.values()) {
      if (!(value instanceof String)) {
        return false;
      }
      texts.add((String) value);
    }
    taken.add(condition);
    return true;
  }

  private boolean add(String column, String is, Object value) {
    ObjectNode condition = Planner.JSON.createObjectNode().put("column", column).put("is", is);
    if (column.equals("offset") && value instanceof Long) {
      taken.add(condition.put("number", (Long) value));
      return true;
    }
    if (column.equals("topic") && is.equals("=") && value instanceof String) {
      condition.put("is", "in").putArray("texts").add((String) value);
      taken.add(condition);
      return true;
    }
    Long micros = microsOf(value);
    if (column.equals("appendTimestamp") && micros != null) {
      taken.add(condition.put("number", micros));
    }
    return false;
  }

  private static Long microsOf(Object value) {
    Instant instant = value instanceof Timestamp ? ((Timestamp) value).toInstant() : null;
    if (value instanceof Instant) {
      instant = (Instant) value;
    }
    if (instant == null || Math.abs(instant.getEpochSecond()) > Integer.MAX_VALUE * 100L) {
      return null;
    }
    return instant.getEpochSecond() * 1_000_000 + instant.getNano() / 1_000;
  }
}
